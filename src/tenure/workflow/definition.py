"""The definition of a workflow: an async function whose first parameter is the `Run`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, ParamSpec, TypeVar

from tenure.errors import InvalidInput
from tenure.jobs.context import Context
from tenure.jobs.definition import JobDefinition, Options
from tenure.jobs.step_codec import failed_step
from tenure.workers.execution.attempt import RunningAttempt
from tenure.workers.execution.outcomes import Cancelled, EndsAttempt, ErrorAction, Raised, describe_error
from tenure.workflow.children import ChildJobs
from tenure.workflow.engine import WorkflowEngine
from tenure.workflow.run import Run

P = ParamSpec("P")
R = TypeVar("R")


class WorkflowDefinition(JobDefinition[P, R]):
    """A declared workflow. `errors` are the classes that a step's recorded error is raised as again."""

    context_class: ClassVar[type] = Run

    def __init__(
        self, function: Callable[..., Any], *, name: str, options: Options, errors: Iterable[type[Exception]] = ()
    ) -> None:
        super().__init__(function, name=name, options=options)
        if not self.is_async:
            raise InvalidInput(self.name, "a workflow is an async function; its steps may be plain ones")
        if not self.wants_context:
            raise InvalidInput(self.name, "the first parameter of a workflow is its run; annotate it: run: tenure.Run")
        if self.isolation != "task":
            raise InvalidInput(self.name, "a workflow runs on the worker's event loop; isolation is for its steps")
        self._errors = {one.__qualname__: one for one in errors}
        self.invoker = self._invoke

    async def _invoke(self, attempt: RunningAttempt, arguments: Mapping[str, Any]) -> Any:
        """Run the function from its beginning over the recorded steps."""
        records = await attempt.services.checkpointer.load(attempt.lease)
        engine = WorkflowEngine(attempt, records)
        children = ChildJobs(engine, self._errors)
        run = Run(engine, Context(attempt), children, self._errors)
        try:
            return await engine.run(self._run_to_end(run, engine, children, arguments))
        except EndsAttempt as end:
            if isinstance(end.outcome, Cancelled):
                await children.cancel_live("its parent was cancelled")
            raise
        except Exception as error:
            if failed_step(error) is None:
                raise
            # The failure is recorded, and every further attempt would find it again.
            raise EndsAttempt(Raised(describe_error(error), ErrorAction.END)) from error

    async def _run_to_end(
        self, run: Run, engine: WorkflowEngine, children: ChildJobs, arguments: Mapping[str, Any]
    ) -> Any:
        try:
            result = await self.function(run, **arguments)
        except Exception as error:
            if failed_step(error) is not None:
                await children.finish()
            raise
        engine.require_all_made()
        await children.finish()
        return result
