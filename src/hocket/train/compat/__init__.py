"""Other people's surfaces over the same parts: `classic` is Ray Train's trainer of 2022."""
