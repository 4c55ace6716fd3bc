# The CUDA half: included by the Makefile, no goals of it are part of `make check`.

# The toolkit's folder, empty: there is none. CUDA_HOME names one; "none": leave CUDA out.
CUDA := $(shell tools/cuda-toolkit.sh find)

cuda-toolkit: ## the CUDA toolkit: the system's, else PyPI's wheels into the cache (100 MB)
	@tools/cuda-toolkit.sh fetch

.PHONY: cuda-toolkit
