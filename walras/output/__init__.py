"""Answers as JSON, HTML and tables."""
