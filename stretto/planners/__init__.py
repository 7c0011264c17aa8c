"""One file a system: each turns a View into a Plan. Imports core only; knows no clock, no socket and no queue."""
