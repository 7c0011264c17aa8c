"""The nouns of Stretto: plain, frozen data that every other folder may import, and that imports none of them."""
