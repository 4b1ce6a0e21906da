"""Which files of this folder pytest leaves alone: how pages are built, and what the build writes."""

collect_ignore_glob = ["conf.py", "_extensions/*", "_kernel/*", "gallery/*"]
