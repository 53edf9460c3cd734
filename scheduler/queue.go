package scheduler

// queue holds the waiting requests in the order of their rank: a binary heap,
// so that a request of any rank joins, leads or leaves in O(log n).
//
// Note: container/heap would box every request in an interface.
type queue struct{ jobs []*job }

func (q *queue) len() int { return len(q.jobs) }

// first is the request that is to be served next.
func (q *queue) first() *job { return q.jobs[0] }

func (q *queue) push(j *job) {
	j.index = len(q.jobs)
	q.jobs = append(q.jobs, j)
	q.up(j.index)
}

func (q *queue) pop() *job {
	j := q.jobs[0]
	q.remove(j)
	return j
}

func (q *queue) remove(j *job) {
	i, last := j.index, len(q.jobs)-1
	q.swap(i, last)
	q.jobs[last] = nil
	q.jobs = q.jobs[:last]
	if i < last {
		q.up(i)
		q.down(i)
	}
	j.index = -1
}

func (q *queue) swap(a, b int) {
	q.jobs[a], q.jobs[b] = q.jobs[b], q.jobs[a]
	q.jobs[a].index, q.jobs[b].index = a, b
}

func (q *queue) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !q.jobs[i].before(q.jobs[parent]) {
			return
		}
		q.swap(i, parent)
		i = parent
	}
}

func (q *queue) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(q.jobs) {
			return
		}
		if right := child + 1; right < len(q.jobs) && q.jobs[right].before(q.jobs[child]) {
			child = right
		}
		if !q.jobs[child].before(q.jobs[i]) {
			return
		}
		q.swap(i, child)
		i = child
	}
}
