package weights

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// maxProblems is how many problems one error lists.
const maxProblems = 10

// problems collects what is wrong with a checkpoint, so that one look shows
// all of it, within bounds and in an order that does not depend on a map's.
type problems struct{ list []error }

func (p *problems) add(err error) {
	if err != nil {
		p.list = append(p.list, err)
	}
}

func (p *problems) err() error { return Problems(p.list) }

// Problems joins errors into one that lists the first of them, sorted, and
// says how many there are. It is nil for none.
func Problems(list []error) error {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	if more := len(list) - maxProblems; more > 0 {
		list = append(list[:maxProblems], fmt.Errorf("and %d more", more))
	}
	return errors.Join(list...)
}
