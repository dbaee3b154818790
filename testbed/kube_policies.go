// The part of kube-router that enforces NetworkPolicies, as k3s has it: no routing, no Services.
package main

import (
	"context"
	"flag"
	"os/signal"
	"sync"
	"syscall"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

func check(err error) {
	if err != nil {
		klog.Fatal(err)
	}
}

func main() {
	config := options.NewKubeRouterConfig()
	config.EnableIPv4 = true
	flag.StringVar(&config.Kubeconfig, "kubeconfig", "", "the way to the cluster")
	flag.StringVar(&config.HostnameOverride, "hostname-override", "", "the name of the node")
	klog.InitFlags(nil)
	flag.Parse()
	ended, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()

	access, err := clientcmd.BuildConfigFromFlags("", config.Kubeconfig)
	check(err)
	client, err := kubernetes.NewForConfig(access)
	check(err)
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	factory.Start(ended.Done())
	factory.WaitForCacheSync(ended.Done())

	var sets sync.Mutex
	tables, ipsets, err := netpol.NewIPTablesHandlers(config)
	check(err)
	enforcer, err := netpol.NewNetworkPolicyController(client, config, pods, policies, namespaces, &sets, tables, ipsets)
	check(err)
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		pods: enforcer.PodEventHandler, namespaces: enforcer.NamespaceEventHandler, policies: enforcer.NetworkPolicyEventHandler,
	} {
		_, err = informer.AddEventHandler(handler)
		check(err)
	}

	beats := make(chan *healthcheck.ControllerHeartbeat)
	go func() {
		for range beats {
		}
	}()
	var running sync.WaitGroup
	running.Add(1)
	enforcer.Run(beats, ended.Done(), &running)
	running.Wait()
}
