"""The scheduler stage: who runs, on which KV blocks, in which step. It counts and never touches tensors.

One owner per piece of state, and a scheduler that reads as their table of contents:

* `sequence`       a sequence's scheduled tokens chasing its known tokens
* `sequence_table` all sequences that are not over, by number and by request
* `choices`        what the choices of one prompt share
* `waiting_queue`  who is next (by priority and time of arrival), and why each one waits
* `running_batch`  the running sequences in the same order, and their slots at the runner
* `kv_blocks`      the block pool: free, active, cached
* `prefix_cache`   which cached block holds which tokens
* `kv_cache`       pool and prefix cache in terms of sequences
* `planner`        one step under one token budget
* `step`           a step from its plan to its record
* `step_cost`      how long a step will take
* `scheduler`      the loop's three calls: schedule, submit, apply
* `stage`          the process around it
"""
