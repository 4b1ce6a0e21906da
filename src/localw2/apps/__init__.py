"""Programs around the library, which never imports them: commands, reports, the explorer, table files."""
