"""Writing a bundle in the background, every file whole."""
