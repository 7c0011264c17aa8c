"""Settings, candidates and the judge: planners tried in simulation under the conditions that were measured."""
