"""When an experiment goes on: pure conditions on a story."""

from collections import defaultdict

from compare.story import Story


def trained(story: Story, replicas: int, steps: int) -> bool:
    """Have so many processes committed so many steps each?"""
    count: dict[int, int] = defaultdict(int)
    for line in story.commits:
        count[line.pid] += 1
    return sum(found >= steps for found in count.values()) >= replicas


def committed_since(story: Story, at: float) -> int:
    """Different steps that were committed since then."""
    return len({line.step for line in story.commits if line.at > at})
