"""The agent of a machine: enrols, beats, launches supervisors, follows attempts, ships logs."""
