"""What ``padiff demo`` shows: a torch encoder, its paddle port with one mistake, and the place of the mistake."""
