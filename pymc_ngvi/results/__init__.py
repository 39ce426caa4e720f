"""What a fit gives: approximation, draws, report, weights, InferenceData, files and plots."""
