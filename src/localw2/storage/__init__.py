"""Files: written completely or not at all, and read without running anything in them."""
