"""Runs of plans: an internal workflow whose function executes the steps of its plan, each under its own id."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, cast

import msgspec

from tenure.errors import InvalidInput
from tenure.jobs.definition import Options
from tenure.jobs.models import encode_model
from tenure.lifecycle.json_text import encode
from tenure.workflow.definition import WorkflowDefinition
from tenure.workflow.plan import Plan, PlanStep, ReadySteps, check_structure, decode_plan, resolve
from tenure.workflow.run import Run
from tenure.workflow.skills import Skill
from tenure.workflow.waits import Join

PLAN_KIND = "tenure.plan"
"""The kind of the runs of plans."""


class PlanRun(Run):
    """A run whose function is a plan."""

    async def execute(self, plan: Plan, skills: Mapping[str, Skill]) -> Any:
        """Execute all steps, and return the output of the plan. If a step fails that aborts, no further step begins;
        once those that run have ended, its error is raised."""
        check_structure(plan)
        results: dict[str, Any] = {}
        running: dict[str, asyncio.Task[Any]] = {}
        ready = ReadySteps(plan)
        self._engine.partial_result = partial(_results_so_far, results)
        while len(results) < len(plan.steps):
            while len(running) < plan.concurrency and (step := ready.take()) is not None:
                running[step.id] = self._engine.start_task(self._step(step, skills, results), None)
            await Join(running.values(), first=True)
            ended = {id_: task for id_, task in running.items() if task.done()}
            if any(task.exception() is not None for task in ended.values()):
                await Join(running.values())
                for task in running.values():
                    task.result()
            for id_, task in ended.items():
                results[id_] = task.result()
                del running[id_]
                ready.ended(id_)
        if plan.output is not None:
            return resolve(plan.output, results, where="plan.output")
        return {step.id: results[step.id] for step in plan.steps}

    async def _step(self, step: PlanStep, skills: Mapping[str, Skill], results: Mapping[str, Any]) -> Any:
        """The result of a step as JSON values."""
        skill = skills.get(step.skill)
        if skill is None:
            self._engine.park(step.id, f"skill {step.skill!r} is not registered")
        options = self.using(
            key=step.id,
            on_error=step.on_error,
            max_attempts=step.max_attempts,
            backoff=step.backoff,
            timeout_seconds=step.timeout_seconds,
            spend_max=step.spend_max,
        )
        arguments = resolve(step.arguments, results, where=f"plan step {step.id!r}")
        value = await options.step(skill.call, **arguments)
        return msgspec.to_builtins(value, enc_hook=encode_model, str_keys=True)


def _results_so_far(results: Mapping[str, Any]) -> str:
    """What a run is halted with: the results by the ids of their steps, unless they are too large. Each is recorded
    with its step anyway."""
    try:
        return encode(results)
    except InvalidInput:
        return "null"


class PlanDefinition(WorkflowDefinition[Any, Any]):
    """The internal workflow of an app's plans. Its arguments are the goal, and the plan."""

    run_class: ClassVar[type[Run]] = PlanRun

    def __init__(self, skills: Mapping[str, Skill]) -> None:
        async def execute_plan(run: Run, goal: str, plan: dict[str, Any]) -> Any:
            return await cast(PlanRun, run).execute(decode_plan(plan), skills)

        super().__init__(execute_plan, name=PLAN_KIND, options=Options())
