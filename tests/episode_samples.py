"""Invented episodes, and the words that must never become markup."""

NASTY = 'a<b & "c"</script><td> 1<2 <script>alert(1)</script> <!-- \u2028 `x` {{ 7*7 }}'


def sample_episode(split="val_mixed", task=0, edits=2, stopped=True, solved=True, prompt=NASTY):
    """An episode of so many edits with four public examples."""
    steps = []
    for time in range(edits + 1):
        program = ["FGT 3", "SUM", *["NOP"] * 6]
        program[2] = f"ADDI {time % 16}" if time else "NOP"
        step = {
            "step": time,
            "program": program,
            "outputs": [[1, 5, 4], 7, True, None],
            "status": ["OK", "OK", "OK", "TYPE_ERROR"],
            "public_right": 3 if time == edits and solved else time % 3,
            "solved": solved and time == edits,
            "decision": "edit" if time < edits else "stop" if stopped else "none",
        }
        if step["decision"] != "none":
            step |= {"stop_prob": 0.9 if time == edits else 0.0001, "value": 0.5, "distance": float(edits - time)}
            step["top_edits"] = [
                {"action": 128 + number, "edit": f"slot 2: opcode = <b>{number}</b>", "probability": 0.5 / 2**number}
                for number in range(5)
            ]
        if step["decision"] == "edit":
            before = program[2]
            step |= {"action": 129, "edit": "slot 2: opcode = <b>1</b>", "valid": True}
            step["changed"] = [{"slot": 2, "before": before, "after": f"ADDI {(time + 1) % 16}"}]
            step["echo"] = [
                {"status": "OK", "type": kind, "length": length, "words": words, "right": right}
                for kind, length, words, right in (
                    ("LIST", 3, [1, 5, 4, 0, 0, 0, 0, 0], True),
                    ("INT", 1, [8, 0, 0, 0, 0, 0, 0, 0], False),
                    ("BOOL", 1, [1, 0, 0, 0, 0, 0, 0, 0], True),
                    ("EMPTY", 0, [0] * 8, False),
                )
            ]
        steps.append(step)
    return {
        "phase": "grpo_echo_r1_policy",
        "split": split,
        "task": task,
        "prompt": prompt,
        "family": "list_pipeline",
        "budget": 8,
        "mode": "learned",
        "reference": "FGT 3; SUM",
        "examples": [{"inputs": [[1, 5, 4], 2], "target": value} for value in ([1, 5, 4], 7, True, 3)],
        "start_solved": False,
        "solved": solved,
        "ever_solved": solved,
        "end": "stop" if stopped else "budget",
        "edits": edits,
        "steps": steps,
    }
