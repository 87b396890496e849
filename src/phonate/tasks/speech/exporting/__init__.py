"""What exported voices are made of: the graph, the form of Piper, the model card."""
