"""What the views of the page show of a model: functions of a `Study` that return plain values."""
