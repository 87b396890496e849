"""From a prepared corpus to batches: the plan of an epoch, the loader and collation."""
