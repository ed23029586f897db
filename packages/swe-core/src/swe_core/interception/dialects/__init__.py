"""The wire formats that agents speak. A dialect knows bytes and shapes, and nothing of rollouts or HTTP."""
