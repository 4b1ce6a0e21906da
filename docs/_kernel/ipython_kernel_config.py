"""The kernel of executed pages: vector graphics, sizes for a phone, no history kept."""

c = get_config()  # noqa: F821
c.InlineBackend.figure_formats = {"svg"}
c.InlineBackend.rc = {"figure.figsize": (6.0, 3.8), "figure.facecolor": "white", "font.size": 12}
c.HistoryManager.enabled = False
c.IPKernelApp.log_level = 40
