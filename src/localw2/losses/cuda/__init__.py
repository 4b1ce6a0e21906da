"""The same pairings on a CUDA device, computed by our own kernels."""
