"""Whether the two bundles can be compared, and which baseline may judge them."""
