"""The host's side of midstream: steer, halt and withdraw over a stock `langgraph-sdk` client."""
