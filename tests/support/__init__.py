"""What the tests share: launching of ranks, reference results, buffers, tools."""
