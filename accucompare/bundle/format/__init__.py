"""What a bundle is made of: records, the manifest, flags, and the bytes of its files."""
