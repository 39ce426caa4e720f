def increment_function(node): return None
