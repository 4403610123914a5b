"""GEOMETRY and GEOGRAPHY: coordinate reference systems, well-known binary, and bounding boxes."""
