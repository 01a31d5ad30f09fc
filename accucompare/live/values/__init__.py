"""Values: nested ones, tensors on their way to the host, sketches on the device."""
