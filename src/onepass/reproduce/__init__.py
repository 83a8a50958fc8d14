"""The paper's tables: its numbers, the runs behind them, ours and its own side by side."""
