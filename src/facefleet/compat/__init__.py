"""Drop-in faces of other libraries."""
