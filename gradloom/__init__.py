"""gradloom: training and fine-tuning as planned, proved static computation graphs on a small native core."""
