"""Robot descriptions: topics, cameras, state, actions, commands and limits."""
