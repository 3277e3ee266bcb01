"""Wire format, topics, merge arithmetic, coordinators and the aggregator; never TensorFlow."""
