"""The web page: who is signed in, what is sent once, and what is sent again and again to pages that are open."""
