"""The same pairings on a CUDA device, by kernels of our own."""
