"""Running a graph by NumPy, without compiling anything.

PyTensor can do that itself, but takes many operations element by element or matrix by matrix in
Python. Here they are replaced by functions of whole arrays.
"""
