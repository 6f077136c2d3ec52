"""Forms in which a trained model is deployed."""
