"""A PyMC model and its data as a target: its layout, graph, derivatives, batches and densities."""
