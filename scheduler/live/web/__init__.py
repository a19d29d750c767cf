"""The web page: sign-in, the page's files, and the overview of the cluster that is streamed to open pages."""
