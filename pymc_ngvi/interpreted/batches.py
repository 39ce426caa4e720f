def batch_function(node): return None
