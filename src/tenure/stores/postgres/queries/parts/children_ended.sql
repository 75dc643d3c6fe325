      -- Waits for children, is not due, and at most `children_max` of its awaited children are live.
      and job.children_max is not null
      and (job.due_at is null or job.due_at > clock.now)
      and (
          select count(*)
          from (
              select
              from tenure.jobs child
              where child.parent_id = job.id and child.awaited and child.finished_at is null
              limit job.children_max + 1
          ) live
      ) <= job.children_max
