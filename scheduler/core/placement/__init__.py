"""Where a gang goes, who must leave for it, and the life of an attempt."""
