"""Why another system is ahead of Regrow, where it is: written by hand, for an experiment and a column."""

LIMIT = (
    "Whoever stands still is judged after 2 s (`--hang-floor`), as torchft's collectives were set to give up after 2 s. "
    "Regrow then replaces it; a lower limit would take a slow disk for a hang."
)
AWAY = (
    "Training does not wait for it. The usual step is a median, and steps with which the state is saved take longer: the "
    "row in which nobody is killed tells what the same count comes to then."
)
REASONS: dict[tuple[str, str], str] = {
    ("kill-2-large", "thrown"): (
        "What the dead one had finished in the step under way dies with it in every system; whether there was any is chance."
    ),
    ("stop", "pause_s"): LIMIT,
    ("sleep", "pause_s"): LIMIT,
    ("coordinator-2s", "steps_away"): AWAY,
    ("coordinator-10s", "steps_away"): AWAY,
    ("lone", "pause_s"): (
        "The replica of torchft that was to heal goes back to its own checkpoint at once. Regrow proves first that nobody "
        "lives who holds the state, looks for the newest one, and says how far back that is."
    ),
    ("join", "mb_per_s"): (
        "A restart reads the checkpoint with nothing else to do, for all training has stopped. A joiner of Regrow loads "
        "beside the training of the others, on the same two cores."
    ),
}
