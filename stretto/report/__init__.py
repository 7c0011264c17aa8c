"""What people look at: tables for the terminal and plots for files. Reads results, changes nothing."""
