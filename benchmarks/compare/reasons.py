"""Why another system is ahead of Regrow, where it is: written by hand, by experiment and column, and maybe settings."""

LIMIT = (
    "Whoever stands still is judged after 2 s (`--hang-floor`), as torchft's collectives were set to give up after 2 s. "
    "Regrow then replaces it; a lower limit would take a slow disk for a hang."
)
AWAY = (
    "Training does not wait for it. The usual step is a median, and steps with which the state is saved take longer: the "
    "row in which nobody is killed tells what the same count comes to then."
)
SHADOW = "With a shadow alone: it applies every step as well, on the same two cores, and hears every record."
UNSAVED = "By default Regrow saves nothing. With --checkpoint (best) it goes on from there."
TOGETHER = (
    "By default the coordinator lives in `regrow run`, which has started the replicas: they end with it, and a job that "
    "saves nothing begins again. With a coordinator of its own (best) training goes on."
)
REASONS: dict[tuple[str, ...], str] = {
    ("steady-large", "ratio"): SHADOW,
    ("steady-large", "more_ms"): SHADOW,
    ("steady-tiny", "ratio"): SHADOW,
    ("steady-tiny", "more_ms"): SHADOW,
    ("coordinator-2s", "pause_s"): TOGETHER,
    ("coordinator-2s", "exited"): TOGETHER,
    ("coordinator-2s", "steps_lost"): TOGETHER,
    ("coordinator-2s", "steps_away", "default"): TOGETHER,
    ("lone", "lost"): UNSAVED,
    ("lone", "pause_s", "default"): UNSAVED,
    ("join", "full_s"): (
        "Where all restart, nobody trains beside the one that loads. Under Regrow the survivor does, on two cores that it "
        "shares with the successor, with the one that becomes the next spare and with a save."
    ),
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
        "Training stands still while torchft hands the state over. A joiner of Regrow loads beside the training of the "
        "others, on the same two cores."
    ),
}
