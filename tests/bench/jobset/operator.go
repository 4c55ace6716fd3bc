// JobSets.
package main

import (
	"context"

	ctrl "sigs.k8s.io/controller-runtime"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/jobset/pkg/controllers"
)

const name = "jobset"

var addToScheme = jobset.AddToScheme

func setup(manager ctrl.Manager) error {
	if err := controllers.SetupJobSetIndexes(context.Background(), manager.GetFieldIndexer()); err != nil {
		return err
	}
	recorder := manager.GetEventRecorderFor(name)
	return controllers.NewJobSetReconciler(manager.GetClient(), manager.GetScheme(), recorder).SetupWithManager(manager)
}
