"""The HTTP front: REST under ``/v1``, KServe v2 under ``/v2``; FastAPI on uvicorn. Decodes no picture."""
